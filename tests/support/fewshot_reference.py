"""Few-shot accuracies as `FewShotTask` gives them, without the probe around it."""

from training.probe.features import FeatureExtractor
from training.probe.fewshot import FewShotTask, support_images


def fewshot_accuracy(model, splits, shots=None, seeds=3):
    """For each number of shots the accuracy of each seed on the test images."""
    extractor = FeatureExtractor(model)
    train, test, names = support_images(splits), splits.test, splits.class_names
    task = FewShotTask(train, test, names, shots, seeds)
    features = extractor(task.support), extractor(test)
    return {n: values for (n, _), values in task.accuracies(*features).items()}
