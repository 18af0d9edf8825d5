"""Django finds the commands of the app here."""
