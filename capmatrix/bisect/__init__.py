"""What turns a failing cell into a passing one, found by trying."""
