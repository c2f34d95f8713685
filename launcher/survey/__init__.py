"""What looks a host over before a launch. Runs on the host, standard library only, and judges nothing."""
