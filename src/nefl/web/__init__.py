"""What `nefl serve` and `nefl watch` share: answers, who may ask, and a server with limits."""
