"""What a user of marl writes: parts of their own, in a package of their own."""
