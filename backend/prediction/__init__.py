"""Text to prediction sets: a tagger and a calibration make the answer for each text."""
