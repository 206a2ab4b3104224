"""What works beside a Hopper kernel's threads; ``engines`` imports ``wgmma`` and ``tma``, and these the others."""
