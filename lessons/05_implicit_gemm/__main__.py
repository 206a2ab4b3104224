from pathlib import Path

from common.cli import lesson_main

raise SystemExit(lesson_main(Path(__file__).parent.name))
