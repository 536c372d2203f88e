"""What runs say beside each other and beside what is declared."""
