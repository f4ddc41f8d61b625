"""The safety taxonomy as data (report 9). The report states 6 categories with 58 subcategories; the list is ours."""
