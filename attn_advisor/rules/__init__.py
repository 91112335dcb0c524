"""Rules: the loader of the pages in /rules, their selection, and the findings made with their texts."""
