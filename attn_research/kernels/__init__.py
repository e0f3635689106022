"""How attention is computed: one file an implementation."""
