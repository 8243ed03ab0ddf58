"""Look at theory, run it on real ranks, draw both: one module per lesson, all built on `frame` and `style`."""
