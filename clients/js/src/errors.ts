/**
 * Every error that the client throws; only an aborted call throws what its signal says.
 *
 * EverlongError
 * ├── APIConnectionError            no answer: refused, reset, no such host
 * ├── APIStatusError                an answer that is an error; one of the following where there is one for its status
 * │   ├── AuthenticationError       401
 * │   ├── PermissionDeniedError     403
 * │   ├── NotFoundError             404
 * │   ├── ConflictError             409
 * │   │   ├── SessionBusyError      409 session_busy: another answer is being written
 * │   │   └── DocumentNotReadyError 409 document_not_ready: it is still being read
 * │   ├── PayloadTooLargeError      413
 * │   ├── UnsupportedMediaTypeError 415
 * │   ├── UnprocessableEntityError  422
 * │   ├── RateLimitError            429
 * │   ├── ServiceUnavailableError   503
 * │   └── InternalServerError       every other 5xx
 * ├── UnexpectedAnswerError         a success whose body no everlong server would send
 * ├── ReadingFailedError            the server could not read a document
 * └── StreamError                   an `error` event, or a stream that ended before the answer was complete
 */

export class EverlongError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The server could not be reached, or the connection broke before it answered. */
export class APIConnectionError extends EverlongError {}

interface Facts {
  status: number;
  code?: string | null;
  type?: string | null;
  param?: string | null;
  retryAfter?: number | null;
}

/** The server answered with an error. `retryAfter`: the wait that it asks for, in seconds, or null. */
export class APIStatusError extends EverlongError {
  readonly status: number;
  readonly code: string | null;
  readonly type: string | null;
  readonly param: string | null;
  readonly retryAfter: number | null;

  constructor(message: string, facts: Facts) {
    super(message);
    this.status = facts.status;
    this.code = facts.code ?? null;
    this.type = facts.type ?? null;
    this.param = facts.param ?? null;
    this.retryAfter = facts.retryAfter ?? null;
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

/** The answer says success, yet it is not what an everlong server sends: is something else at this address? */
export class UnexpectedAnswerError extends EverlongError {}

/** The server gave up reading the document or session `id`. */
export class ReadingFailedError extends EverlongError {
  constructor(
    message: string,
    readonly id: string,
    readonly code: string | null,
  ) {
    super(message);
  }
}

/** A streamed answer failed. `code`, `type`, `param` and `retryAfter` (seconds) come from the event; `closeCode` is a WebSocket's. */
export class StreamError extends EverlongError {
  readonly code: string | null;
  readonly type: string | null;
  readonly param: string | null;
  readonly closeCode: number | null;
  readonly retryAfter: number | null;

  constructor(
    message: string,
    facts: { [key in "code" | "type" | "param"]?: string | null } & { closeCode?: number; retryAfter?: number | null } = {},
  ) {
    super(message);
    this.retryAfter = facts.retryAfter ?? null;
    this.code = facts.code ?? null;
    this.type = facts.type ?? null;
    this.param = facts.param ?? null;
    this.closeCode = facts.closeCode ?? null;
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

/** The error that an answer is, from its status, its `Retry-After` and its body. */
export function statusError(status: number, retryAfter: string | null, body: string): APIStatusError {
  const kind = BY_STATUS[status] ?? (status >= 500 ? InternalServerError : APIStatusError);
  const wait = parseRetryAfter(retryAfter);
  const error = errorIn(body);
  if (!error) return new kind(`HTTP ${status}, in words that no everlong server uses`, { status, retryAfter: wait });
  const exact = (status === 409 && BY_CODE[String(error.code)]) || kind;
  return new exact(error.message, { ...error, status, retryAfter: wait });
}

function errorIn(body: string): ErrorFacts | null {
  try {
    const { error } = JSON.parse(body);
    return typeof error?.message === "string" ? error : null;
  } catch {
    return null; // a proxy's page, most likely
  }
}

interface ErrorFacts {
  message: string;
  code?: string | null;
  type?: string | null;
  param?: string | null;
}

/** Seconds to wait, from a `Retry-After` header in either of its forms (seconds or a date); null if it has none. */
export function parseRetryAfter(value: string | null, now: number = Date.now()): number | null {
  if (value === null || value.trim() === "") return null;
  const seconds = /^\s*\d+(\.\d+)?\s*$/.test(value) ? Number(value) : (Date.parse(value) - now) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : null;
}
