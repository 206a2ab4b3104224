from pathlib import Path

try:
    from common.cli import lesson_main
except KeyboardInterrupt:
    raise SystemExit(130) from None

raise SystemExit(lesson_main(Path(__file__).parent.name))
