"""How ranks exchange gradients."""
