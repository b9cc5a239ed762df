"""The compiled inner loops. Plain arrays in, plain arrays out; checked against enumeration by the tests."""
