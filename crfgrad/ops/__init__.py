"""The operations that inference is made of, each defined once for all devices."""
