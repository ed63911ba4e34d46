"""`marl credit-check`: credit rules compared with known answers and with exact values of small, enumerated games."""
