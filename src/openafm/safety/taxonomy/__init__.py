"""The safety taxonomy as data (report 9): 6 categories, 58 subcategories. The list is ours; the report states the numbers."""
