"""Ways to run Oscine inside another serving system."""
