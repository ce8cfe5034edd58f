/**
 * Every error that the client throws. An aborted call throws the reason of its signal instead.
 *
 * EverlongError
 * ├── APIConnectionError            no response: connection refused or reset, or unknown host
 * ├── APITimeoutError               no response within the time that `fetch` waits for one: in Node 300 s
 * ├── APIStatusError                an error response; a subclass if its status has one
 * │   ├── AuthenticationError       401
 * │   ├── PermissionDeniedError     403
 * │   ├── NotFoundError             404
 * │   ├── ConflictError             409
 * │   │   ├── SessionBusyError      409 session_busy: the session is generating another answer
 * │   │   └── DocumentNotReadyError 409 document_not_ready: the document is still being read
 * │   ├── PayloadTooLargeError      413
 * │   ├── UnsupportedMediaTypeError 415
 * │   ├── UnprocessableEntityError  422
 * │   ├── RateLimitError            429
 * │   ├── ServiceUnavailableError   503
 * │   └── InternalServerError       every other 5xx
 * ├── UnexpectedAnswerError         a success response with a body that no everlong server sends
 * ├── ReadingFailedError            the server could not read a document
 * └── StreamError                   an `error` event, or a stream that ended before the answer was complete
 */

export class EverlongError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The server could not be reached, or the connection broke before the response. */
export class APIConnectionError extends EverlongError {}

/**
 * `fetch` has given up, and the server has ended the work for this call. The call is not retried, as that would last as long. To get
 * an answer that takes longer, stream it. For other calls, pass a `fetch` that waits longer.
 */
export class APITimeoutError extends EverlongError {}

interface StatusFields {
  status: number;
  code?: string | null;
  type?: string | null;
  param?: string | null;
  retryAfter?: number | null;
}

/** The server responded with an error. `retryAfter` is the delay in seconds that it asks for, or null. */
export class APIStatusError extends EverlongError {
  readonly status: number;
  readonly code: string | null;
  readonly type: string | null;
  readonly param: string | null;
  readonly retryAfter: number | null;

  constructor(message: string, fields: StatusFields) {
    super(message);
    this.status = fields.status;
    this.code = fields.code ?? null;
    this.type = fields.type ?? null;
    this.param = fields.param ?? null;
    this.retryAfter = fields.retryAfter ?? null;
  }
}

export class AuthenticationError extends APIStatusError {}
export class PermissionDeniedError extends APIStatusError {}
export class NotFoundError extends APIStatusError {}
export class ConflictError extends APIStatusError {}
export class SessionBusyError extends ConflictError {}
export class DocumentNotReadyError extends ConflictError {}
export class PayloadTooLargeError extends APIStatusError {}
export class UnsupportedMediaTypeError extends APIStatusError {}
export class UnprocessableEntityError extends APIStatusError {}
export class RateLimitError extends APIStatusError {}
export class ServiceUnavailableError extends APIStatusError {}
export class InternalServerError extends APIStatusError {}

/** The response reports success, but its body is not one of an everlong server. Check the address. */
export class UnexpectedAnswerError extends EverlongError {}

/** The server could not read the document, or the documents of the session, `id`. */
export class ReadingFailedError extends EverlongError {
  constructor(
    message: string,
    readonly id: string,
    readonly code: string | null,
  ) {
    super(message);
  }
}

/**
 * A streamed answer failed. `code`, `type`, `param` and `retryAfter` (seconds) come from the `error` event. `closeCode` is the
 * code with which a WebSocket was closed, or null.
 */
export class StreamError extends EverlongError {
  readonly code: string | null;
  readonly type: string | null;
  readonly param: string | null;
  readonly closeCode: number | null;
  readonly retryAfter: number | null;

  constructor(
    message: string,
    fields: { [key in "code" | "type" | "param"]?: string | null } & { closeCode?: number; retryAfter?: number | null } = {},
  ) {
    super(message);
    this.retryAfter = fields.retryAfter ?? null;
    this.code = fields.code ?? null;
    this.type = fields.type ?? null;
    this.param = fields.param ?? null;
    this.closeCode = fields.closeCode ?? null;
  }
}

const BY_STATUS: Record<number, typeof APIStatusError> = {
  401: AuthenticationError,
  403: PermissionDeniedError,
  404: NotFoundError,
  409: ConflictError,
  413: PayloadTooLargeError,
  415: UnsupportedMediaTypeError,
  422: UnprocessableEntityError,
  429: RateLimitError,
  503: ServiceUnavailableError,
};
const BY_CODE: Record<string, typeof APIStatusError> = {
  session_busy: SessionBusyError,
  document_not_ready: DocumentNotReadyError,
};

/** The error for an unsuccessful response, from its status, its `Retry-After` header and its body. */
export function statusError(status: number, retryAfter: string | null, body: string): APIStatusError {
  const kind = BY_STATUS[status] ?? (status >= 500 ? InternalServerError : APIStatusError);
  const wait = parseRetryAfter(retryAfter);
  const error = parseError(body);
  if (!error) return new kind(`HTTP ${status}, but not from an everlong server`, { status, retryAfter: wait });
  const exact = (status === 409 && BY_CODE[String(error.code)]) || kind;
  return new exact(error.message, { ...error, status, retryAfter: wait });
}

function parseError(body: string): ErrorFields | null {
  try {
    const { error } = JSON.parse(body);
    return typeof error?.message === "string" ? error : null;
  } catch {
    return null; // most likely a proxy's error page
  }
}

interface ErrorFields {
  message: string;
  code?: string | null;
  type?: string | null;
  param?: string | null;
}

/** The delay in seconds from a `Retry-After` header (seconds or a date); null if it is missing or invalid. */
export function parseRetryAfter(value: string | null, now: number = Date.now()): number | null {
  if (value === null || value.trim() === "") return null;
  const seconds = /^\s*\d+(\.\d+)?\s*$/.test(value) ? Number(value) : (Date.parse(value) - now) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : null;
}
