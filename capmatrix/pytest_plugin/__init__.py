"""What ``capmatrix.plugin`` loads once a pytest run was asked for matrix files, and not before."""
