// Refuses JSON nested so deeply that TensorFlow Serving would crash on it.
//
// tensorflow_model_server reads nested lists recursively and without a limit
// (CVE-2025-0649). A request of images nests six levels deep.
const DEEPEST = 64;
const QUOTE = 34, BACKSLASH = 92;  // bytes: no character of UTF-8 hides one of these
const OPEN_LIST = 91, CLOSE_LIST = 93, OPEN_OBJECT = 123, CLOSE_OBJECT = 125;

function guard(r) {
    if (r.requestBuffer && isTooDeep(r.requestBuffer)) {
        r.headersOut['Content-Type'] = 'application/json';
        r.return(400, `{"error": "JSON nested deeper than ${DEEPEST} levels"}`);
    } else {
        r.internalRedirect('@rest');
    }
}

function isTooDeep(bytes) {
    let depth = 0;
    for (let i = 0; i < bytes.length && depth <= DEEPEST; i += 1) {
        const byte = bytes[i];
        if (byte === QUOTE) {
            i = endOfString(bytes, i + 1);
        } else if (byte === OPEN_LIST || byte === OPEN_OBJECT) {
            depth += 1;
        } else if (byte === CLOSE_LIST || byte === CLOSE_OBJECT) {
            depth -= 1;
        }
    }
    return depth > DEEPEST;
}

// Where the closing quote is; an image is a string of megabytes, which is leapt over.
function endOfString(bytes, start) {
    let end = bytes.indexOf(QUOTE, start);
    while (end >= 0 && isEscaped(bytes, end)) {
        end = bytes.indexOf(QUOTE, end + 1);
    }
    return end < 0 ? bytes.length : end;
}

function isEscaped(bytes, index) {
    let first = index;
    while (bytes[first - 1] === BACKSLASH) {
        first -= 1;
    }
    return (index - first) % 2 === 1;
}

export default { guard };
