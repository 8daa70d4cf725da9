// Refuses JSON nested so deeply that TensorFlow Serving would crash on it.
//
// tensorflow_model_server reads nested lists recursively and without a limit
// (CVE-2025-0649). A request of images nests six levels deep.
const DEEPEST = 64;
const STEPS = 100000;  // at a time, about 20 ms: meanwhile the worker's other requests wait
const QUOTE = 34, BACKSLASH = 92;  // bytes: no character of UTF-8 hides one of these
const OPEN_LIST = 91, CLOSE_LIST = 93, OPEN_OBJECT = 123, CLOSE_OBJECT = 125;

async function guard(r) {
    if (r.variables.request_body_file) {  // chunks of a few bytes, larger than the buffer
        r.return(413);
    } else if (r.requestBuffer && await isTooDeep(r.requestBuffer)) {
        r.headersOut['Content-Type'] = 'application/json';
        r.return(400, `{"error": "JSON nested deeper than ${DEEPEST} levels"}`);
    } else {
        r.internalRedirect('@rest');
    }
}

async function isTooDeep(bytes) {
    const end = bytes.length;
    let at = 0, depth = 0, inString = false, quote = -1, backslash = -1;
    // Here: njs keeps a variable of a loop for each of its turns, 18 bytes for each byte.
    let step, byte;
    while (at < end) {
        for (step = 0; step < STEPS && at < end; step += 1) {
            byte = bytes[at];
            at += 1;
            if (inString) {
                if (byte === BACKSLASH) {
                    at += 1;
                } else if (byte === QUOTE) {
                    inString = false;
                } else if (step % 64 === 0) {  // long: an image has megabytes, leap
                    quote = quote < at ? find(bytes, QUOTE, at) : quote;
                    backslash = backslash < at ? find(bytes, BACKSLASH, at) : backslash;
                    at = Math.min(quote, backslash);
                }
            } else if (byte === QUOTE) {
                inString = true;
            } else if (byte < OPEN_LIST) {  // digits and commas: almost everything
                continue;
            } else if (byte === OPEN_LIST || byte === OPEN_OBJECT) {
                depth += 1;
                if (depth > DEEPEST) {
                    return true;
                }
            } else if (byte === CLOSE_LIST || byte === CLOSE_OBJECT) {
                depth -= 1;
            }
        }
        if (at < end) {
            await otherRequests();
        }
    }
    return false;
}

function find(bytes, byte, start) {
    const found = bytes.indexOf(byte, start);
    return found < 0 ? bytes.length : found;
}

function otherRequests() {  // 1: nginx would fire a timer of 0 before it looks at sockets
    return new Promise((resume) => setTimeout(resume, 1));
}

export default { guard };
