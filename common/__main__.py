try:
    from common.cli import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

raise SystemExit(main())
