"""Images as the bytes of a file."""

import io


def image_bytes(image, format_, **options):
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()
