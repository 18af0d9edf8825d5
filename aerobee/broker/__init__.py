"""Layer 3: the broker process. Each sub-package holds one subject; assembly/ connects them."""
