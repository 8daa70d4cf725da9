"""Reports of a run: console lines, TensorBoard, pictures, report.html."""
