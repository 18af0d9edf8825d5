"""Commands that find causes: doctor, why, top."""
