"""Parts of the model beside its layers and its two ends, and what they are made of."""
