"""What run folders have to show: tables, figures and pages made from the folders alone."""
