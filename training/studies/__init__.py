"""Studies: recipes beside one another and beside other classifiers."""
