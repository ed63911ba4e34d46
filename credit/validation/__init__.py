"""Credit against known answers: exact values of small games, by enumeration, and what credit rules make of them."""
