// Made by `npm run types` from ../openapi.json.

export interface components {
    schemas: {
        /** @description All parts are there. */
        CompleteUpload: {
            /** @description of the whole text */
            md5?: string | null;
            /** @description in the order of the text */
            part_ids: string[];
        };
        /** @description A message to a session, and how its answer is drawn. */
        CreateMessage: {
            /** @description what is said */
            content: string;
            /**
             * @description Subtracted from a token's logit for each time it was generated
             * @default 0
             */
            frequency_penalty: number;
            /**
             * @description Continue after the end-of-text token
             * @default false
             */
            ignore_eos: boolean;
            /** @description Constrain the answer to JSON that follows this schema */
            json_schema?: {
                [key: string]: unknown;
            } | null;
            logit_bias?: {
                [key: string]: number;
            };
            /**
             * @description Return the log-probability of each token
             * @default false
             */
            logprobs: boolean;
            /**
             * @description Maximum number of tokens to generate
             * @default 512
             */
            max_tokens: number;
            /**
             * @description Sample only from tokens with at least this probability relative to the likeliest token
             * @default 0
             */
            min_p: number;
            /**
             * @description Subtracted from the logit of a token that was already generated
             * @default 0
             */
            presence_penalty: number;
            /** @description false: no passages */
            recall?: components["schemas"]["Recall"] | false;
            /**
             * @description Divides positive logits of tokens in the context, and multiplies negative ones; 1 has no effect
             * @default 1
             */
            repetition_penalty: number;
            /** @description Seed of the sampling; the same seed gives the same answer */
            seed?: number | null;
            /**
             * @description Strings that end the answer; they are not returned
             * @default []
             */
            stop: string[];
            /** @default [] */
            stop_token_ids: number[];
            /**
             * @description answer with server-sent events
             * @default false
             */
            stream: boolean;
            /**
             * @description Sampling temperature; 0 always takes the likeliest token
             * @default 0.2
             */
            temperature: number;
            /**
             * @description Sample from the k likeliest tokens only; 0 means all tokens
             * @default 0
             */
            top_k: number;
            /**
             * @description Number of likeliest alternatives whose log-probabilities are returned with each token
             * @default 0
             */
            top_logprobs: number;
            /**
             * @description Sample from the smallest set of likeliest tokens with at least this total probability
             * @default 0.9
             */
            top_p: number;
        };
        /** @description A new session over documents, which are read one after the other into one memory. */
        CreateSession: {
            documents?: string[];
            /** @description the served model's name; default: the served model */
            model?: string | null;
            /** @description for messages that say nothing of it; false: no passages; null: as the server does */
            recall?: components["schemas"]["Recall"] | false | null;
        };
        /** @description A file that is about to come. */
        CreateUpload: {
            /** @description of all parts together */
            bytes: number;
            filename: string;
            /** @description what counts is what comes: UTF-8 text */
            mime_type: string;
            /** @constant */
            purpose: "user_data";
        };
        /** @description What was deleted. */
        Deleted: {
            /**
             * @default true
             * @constant
             */
            deleted: true;
            id: string;
            /** @enum {string} */
            object: "document.deleted" | "session.deleted";
        };
        /** @description An uploaded text and how far it has been read. */
        Document: {
            /** @description UTF-8 bytes of text */
            bytes: number;
            /** @description Unix time in seconds */
            created_at: number;
            error: components["schemas"]["DocumentError"] | null;
            filename: string | null;
            /** @description what the text was made of: pdf, docx, epub, html; null: it was text */
            format: string | null;
            id: string;
            model: string;
            /**
             * @default document
             * @constant
             */
            object: "document";
            /** @description 0 … 1; null before reading has begun */
            progress: number | null;
            /** @description full segments read into the memory */
            segments: number;
            /** @description SHA-256 of the state's tensors, once ready */
            state_digest: string | null;
            /** @enum {string} */
            status: "queued" | "reading" | "ready" | "failed";
            /** @description tokens read so far */
            tokens: number;
            tokens_per_second: number | null;
        };
        /** @description Why a document could not be read. */
        DocumentError: {
            code: string;
            message: string;
        };
        /** @description Newest first. */
        DocumentList: {
            data: components["schemas"]["Document"][];
            has_more: boolean;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description A part of a document's text: bytes `start_byte` to `end_byte` of its UTF-8; a byte-order mark does not count. */
        DocumentText: {
            /** @description of the whole text */
            bytes: number;
            document: string;
            end_byte: number;
            /**
             * @default document.text
             * @constant
             */
            object: "document.text";
            start_byte: number;
            text: string;
        };
        /** @description Every error of every endpoint. */
        ErrorBody: {
            error: components["schemas"]["ErrorDetail"];
        };
        /** @description `code` is for programs, `param` names the field at fault. */
        ErrorDetail: {
            code: string;
            message: string;
            param: string | null;
            type: string;
        };
        /**
         * @description A passage that the model had before it, word for word: `text[start:end]` of the document's text, counted in
         *     characters, or in bytes of its UTF-8; a byte-order mark does not count. In tokens: those of the text alone, counted
         *     from 0 by the model's tokenizer, that any of its characters are in.
         */
        Evidence: {
            document: string;
            end: number;
            end_byte: number;
            /** @description missing in answers of versions before there was one, and where the document was deleted meanwhile */
            end_token?: number | null;
            /** @description where it begins, in a PDF */
            page?: number | null;
            /** @description BM25 */
            score: number;
            /** @description the heading that it stands under, in Word, EPUB and HTML */
            section?: string | null;
            start: number;
            start_byte: number;
            /** @description missing in answers of versions before there was one, and where the document was deleted meanwhile */
            start_token?: number | null;
            text: string;
        };
        /** @description Where a document is. */
        Fetch: {
            /** @description a name for people; default the address's last part */
            filename?: string | null;
            /** @description http:// or https://, of a host in EVERLONG_FETCH_HOSTS */
            url: string;
        };
        /** @description A document under OpenAI's names. */
        File: {
            bytes: number;
            created_at: number;
            expires_at?: null;
            filename: string;
            id: string;
            /**
             * @default file
             * @constant
             */
            object: "file";
            /**
             * @default user_data
             * @constant
             */
            purpose: "user_data";
            /** @description uploaded: it is being read; processed; error */
            status: string;
            status_details: string | null;
        };
        /** @description A kind of file that can be uploaded. What a file is, its content tells, not its name. */
        Format: {
            /** @description that such files usually have; text may have any */
            extensions: string[];
            /** @enum {string} */
            id: "text" | "pdf" | "docx" | "epub" | "html";
            media_types: string[];
            name: string;
            /**
             * @default format
             * @constant
             */
            object: "format";
        };
        /** @description What this server makes texts of, and how much of it. */
        FormatList: {
            data: components["schemas"]["Format"][];
            /** @description of a file, and of the text that it becomes */
            max_bytes: number;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description The tokens of the context that are a document's. */
        MemoryDocument: {
            document: string;
            end: number;
            start: number;
        };
        /** @description One layer of an ∞-former: a signal, in bins of equal space. */
        MemoryLayer: {
            /** @description what each bin gets of the attention that the open segment gives, sums to 1; null without one */
            attention: number[] | null;
            /** @description positions in the context, in tokens, at the borders of the bins, one more than bins: the closer two are, the more space the tokens between them have */
            edges: number[];
            layer: number;
            /** @description those with the most space, the largest first */
            phrases: components["schemas"]["MemoryPhrase"][];
        };
        /** @description A part of a memory, of one `layer` or, with null, of all. */
        MemoryPart: {
            /** @description tokens since it was last written */
            age: number;
            /** @description by which share of its length the open segment would change it if it ended now; null where nothing can be said: it keeps tokens as they are, or there is no open segment */
            change: number | null;
            /** @description … to here */
            end: number;
            layer: number | null;
            name: string;
            /** @description what it has room for: tokens, positions, vectors, functions, associations */
            slots: number;
            /** @description it is made of the tokens of the context from here … */
            start: number;
            /** @description how many of these it uses; the effective rank, a fraction, where it is not written slot by slot */
            used: number;
        };
        /** @description Tokens of the context with much space. */
        MemoryPhrase: {
            end: number;
            /** @description their words; null outside of documents, and for a document that was deleted */
            quote: components["schemas"]["Quote"] | null;
            /** @description their share of the memory, 0 … 1 */
            space: number;
            start: number;
        };
        /** @description A part of the dialogue. Those of the user have neither `finish_reason` nor `usage`. */
        Message: {
            content: string;
            created_at: number;
            evidence?: components["schemas"]["Evidence"][] | null;
            finish_reason?: ("stop" | "length" | "cancelled") | null;
            id: string;
            logprobs?: {
                [key: string]: unknown;
            }[] | null;
            model?: string | null;
            /**
             * @default message
             * @constant
             */
            object: "message";
            /** @enum {string} */
            role: "user" | "assistant";
            seed?: number | null;
            session?: string | null;
            usage?: components["schemas"]["Usage"] | null;
        };
        /** @description Oldest first. */
        MessageList: {
            data: components["schemas"]["Message"][];
            /**
             * @default false
             * @constant
             */
            has_more: false;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description The served models. */
        ModelList: {
            data: components["schemas"]["ServedModel"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description Words of a document, with the same offsets as `Evidence`. */
        Quote: {
            document: string;
            end: number;
            end_byte: number;
            end_token: number;
            start: number;
            start_byte: number;
            start_token: number;
            text: string;
        };
        /**
         * @description Passages of the documents that are put before the question, word for word. What a message leaves out, its session
         *     sets, or else the server.
         */
        Recall: {
            /** @description at most so many; 0 is none */
            passages?: number | null;
            /** @description what they may take together; at most what the model sees at once */
            tokens?: number | null;
        };
        /** @description The model that answers. */
        ServedModel: {
            /** @description null for a model trained from scratch */
            backbone: string | null;
            /** @description Unix time in seconds since when this server serves it */
            created: number;
            description: string;
            fingerprint: string;
            id: string;
            memory: string;
            /** @description false: the memory has no trained weights and answers nonsense; null: it has nothing to train */
            memory_trained: boolean | null;
            /**
             * @default model
             * @constant
             */
            object: "model";
            /** @default everlong */
            owned_by: string;
            segment_length: number;
            /** @description bytes of a session's memory, however long its documents are */
            state_bytes: number;
        };
        /** @description A fork of its documents' state plus the dialogue. */
        Session: {
            created_at: number;
            documents: string[];
            id: string;
            messages: number;
            model: string;
            /**
             * @default session
             * @constant
             */
            object: "session";
            /** @description tokens of context: documents and dialogue */
            position: number;
            /** @description for messages that say nothing of it; null: as the server does */
            recall: components["schemas"]["Recall"] | false | null;
            state_bytes: number;
            state_digest: string | null;
            /** @enum {string} */
            status: "reading" | "ready" | "failed";
            /** @description the first question, in at most 80 characters, or what it was given; null: none yet */
            title: string | null;
        };
        /** @description Newest first. */
        SessionList: {
            data: components["schemas"]["Session"][];
            has_more: boolean;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description What a session's memory holds, and how full it is. All positions are tokens of the context: documents and dialogue. */
        SessionMemory: {
            /** @description of the memory, however much it has read */
            bytes: number;
            documents: components["schemas"]["MemoryDocument"][];
            /** @description of an ∞-former */
            layers: components["schemas"]["MemoryLayer"][];
            memory: string;
            /**
             * @default session.memory
             * @constant
             */
            object: "session.memory";
            /** @description tokens of the open segment, which are not in the memory yet */
            open: number;
            parts: components["schemas"]["MemoryPart"][];
            segment_length: number;
            /** @description full segments read into the memory */
            segments: number;
            session: string;
            /** @description read into the memory */
            tokens: number;
        };
        /** @description What of a session can be changed. What is not given stays. */
        UpdateSession: {
            /** @description for messages that say nothing of it; false: no passages; null: as the server does */
            recall?: components["schemas"]["Recall"] | false | null;
            /** @description for people; null: the next question gives one */
            title?: string | null;
        };
        /** @description A file that comes in parts, or has come. */
        Upload: {
            bytes: number;
            created_at: number;
            expires_at: number;
            file: components["schemas"]["File"] | null;
            filename: string;
            id: string;
            /**
             * @default upload
             * @constant
             */
            object: "upload";
            /** @constant */
            purpose: "user_data";
            /** @enum {string} */
            status: "pending" | "completed" | "cancelled";
        };
        /** @description A part that is on disk. */
        UploadPart: {
            created_at: number;
            id: string;
            /**
             * @default upload.part
             * @constant
             */
            object: "upload.part";
            upload_id: string;
        };
        /** @description Tokens. `reused_tokens` of the prompt's were held in memory and not read again. */
        Usage: {
            completion_tokens: number;
            prompt_tokens: number;
            reused_tokens: number;
        };
        ValidationError: {
            ctx?: Record<string, never>;
            input?: unknown;
            loc: (string | number)[];
            msg: string;
            type: string;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
