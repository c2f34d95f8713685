"""Problems found before a launch: hosts are asked by surveyors, their answers judged, remedies named."""
