"""What a run reports: console line, TensorBoard, pictures, report.md."""
