"""Creates, adopts, opens and alters message tables. Waterclock's own tables (the catalogue) hold a row for each."""
