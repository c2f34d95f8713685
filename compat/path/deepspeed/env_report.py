"""`python -m deepspeed.env_report`: what `dslaunchctl report` says."""

from dslaunch.launcher.ctl.report import gather, report_as_text


def main(hide_operator_status: bool = False, hide_errors_and_warnings: bool = False) -> None:
    """Print it; no operator is built, so that none has a status."""
    print(report_as_text(gather()))


cli_main = main

if __name__ == "__main__":
    main()
