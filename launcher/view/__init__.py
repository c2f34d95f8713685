"""`dslaunchctl view`: a run's folder as one HTML page. Everything but `read.py` is pure."""
