"""What assigning regions costs."""
