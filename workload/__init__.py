"""The work: a GPT, a plan that splits it, and the program that one rank performs in one step."""
