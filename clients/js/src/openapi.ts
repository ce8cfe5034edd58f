// Made by `npm run types` from ../openapi.json.

export interface components {
    schemas: {
        /**
         * @description A sentence of an answer, `content[start:end]`, rests on a passage: on `text[document_start:document_end]` of the
         *     document. The server finds citations by comparing words. All offsets count characters, like those of `Evidence`.
         */
        Citation: {
            document: string;
            document_end: number;
            document_start: number;
            end: number;
            /** @description position of the passage in the answer's `evidence`, from 0 */
            evidence: number;
            filename: string | null;
            /** @description page that the cited part begins on, if the document has pages */
            page?: number | null;
            /** @description where the cited part begins, as `section` of `Evidence` */
            section?: string | null;
            start: number;
        };
        /** @description The parts of a complete upload. */
        CompleteUpload: {
            /** @description MD5 of the whole file, checked if given */
            md5?: string | null;
            /** @description an extension: language of the text in scanned pages and pictures, a value of EVERLONG_OCR_LANGUAGE; default: that of the server */
            ocr_language?: string | null;
            /** @description ids of all parts, in the order of the file */
            part_ids: string[];
        };
        /** @description A message to a session, and the sampling parameters of its answer. */
        CreateMessage: {
            /** @description text of the message */
            content: string;
            /**
             * @description extend the last answer, which reached its limit of tokens: true, or the answer's id, which is refused if it is not the last answer's; `content` and `recall` are not used, `instructions` and `json_schema` are refused
             * @default false
             */
            continue_answer: boolean | string;
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
            /** @description how to answer, such as "Answer in German.": a system message for this answer alone, which is not listed among the session's messages */
            instructions?: string | null;
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
            /** @description name of the session's model; any other is refused */
            model?: string | null;
            /**
             * @description what the server does if the client disconnects before the answer is complete. cancel: it cancels the answer and leaves the session unchanged. finish: it completes the answer; meanwhile `running` of the session's messages has its text so far
             * @default cancel
             * @enum {string}
             */
            on_disconnect: "cancel" | "finish";
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
            /**
             * @description End an answer that repeats itself over and over, and drop what it repeats: `finish_reason` is then "repetition". No effect with `ignore_eos` or `json_schema`
             * @default true
             */
            stop_repetition: boolean;
            /** @default [] */
            stop_token_ids: number[];
            /**
             * @description return server-sent events
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
        /** @description A new session. Its documents are read in order into one memory. */
        CreateSession: {
            documents?: string[];
            /**
             * @description earlier questions and answers, in turn: the memory reads them with the next question
             * @default []
             */
            messages: components["schemas"]["PastMessage"][];
            /** @description name of a model of the server; default: its first model */
            model?: string | null;
            /** @description the session that the messages come from */
            parent?: string | null;
            /** @description default for the session's messages; false: no passages; null: the server's default */
            recall?: components["schemas"]["Recall"] | false | null;
            /** @description null: the first question */
            title?: string | null;
        };
        /** @description A new multipart upload. */
        CreateUpload: {
            /** @description size of the file: all parts together */
            bytes: number;
            filename: string;
            /** @description ignored: the server checks the content */
            mime_type: string;
            /**
             * @description assistants: another name of user_data
             * @enum {string}
             */
            purpose: "user_data" | "assistants";
        };
        /** @description The deleted object. */
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
        /** @description An uploaded text and the progress of its reading. */
        Document: {
            /** @description size of the text in bytes of UTF-8 */
            bytes: number;
            /** @description Unix time in seconds */
            created_at: number;
            error: components["schemas"]["DocumentError"] | null;
            filename: string | null;
            /** @description id of the format that the text was converted from (GET /v1/formats); null: uploaded as text */
            format: string | null;
            id: string;
            model: string;
            /** @description what the conversion left out of the text, or repaired; at most 100 and a few */
            notes: components["schemas"]["DocumentNote"][];
            /**
             * @default document
             * @constant
             */
            object: "document";
            /**
             * @description whether GET /v1/documents/{id}/pages/{page}.png draws its pages, as for a PDF
             * @default false
             */
            pages: boolean;
            /** @description share of the text that has been read, 0 to 1; null before reading starts */
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
            /** @description null: the server searches by words alone */
            vectors: components["schemas"]["DocumentVectors"] | null;
        };
        /** @description Why a document could not be read. */
        DocumentError: {
            code: string;
            message: string;
        };
        /** @description A page of documents, newest first. */
        DocumentList: {
            data: components["schemas"]["Document"][];
            has_more: boolean;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description Something that the conversion left out of the text, or repaired. */
        DocumentNote: {
            /** @description page or slide that it is about, counted from 1 */
            page: number | null;
            /** @description chapter, attachment or other part of the file that it is about */
            part: string | null;
            text: string;
        };
        /** @description A part of a document's text: bytes `start_byte` to `end_byte` of its UTF-8, not counting a byte-order mark. */
        DocumentText: {
            /** @description size of the whole text in bytes */
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
        /** @description How far a document can be searched by meaning. Questions are answered meanwhile, by a search for words. */
        DocumentVectors: {
            /** @description share of the text that has vectors, 0 to 1, as this server knows */
            progress: number;
        };
        /** @description The model of `/v1/embeddings`, `/v1/rerank` and the search by meaning. It answers no questions. */
        EmbeddingModel: {
            /** @description Unix time in seconds at which the server started */
            created: number;
            description: string;
            /** @description length of its vectors */
            dimensions: number;
            fingerprint: string;
            id: string;
            /** @description languages that it was trained on (ISO 639-1); null: not known */
            languages: string[] | null;
            /** @description tokens that one vector is computed from; a longer text is embedded in parts */
            max_tokens: number;
            /**
             * @default model
             * @constant
             */
            object: "model";
            /** @default everlong */
            owned_by: string;
        };
        /** @description The body of every error response. */
        ErrorBody: {
            error: components["schemas"]["ErrorDetail"];
        };
        /** @description An error. Programs read `type` and `code`; `param` names the invalid field. */
        ErrorDetail: {
            code: string;
            message: string;
            param: string | null;
            type: string;
        };
        /**
         * @description A passage that the model saw verbatim: `text[start:end]` of the document. `start` and `end` count characters,
         *     `start_byte` and `end_byte` count bytes of UTF-8; both exclude a byte-order mark. `start_token` and `end_token` count
         *     tokens of the document's text, from 0, and include each token that overlaps the passage.
         */
        Evidence: {
            document: string;
            end: number;
            end_byte: number;
            /** @description missing in answers of older versions, and if the document was deleted in the meantime */
            end_token?: number | null;
            /** @description page of a PDF on which the passage begins */
            page?: number | null;
            /** @description 1 ÷ the place of the passage in the order of the search */
            score: number;
            /** @description where the passage is: a heading, a sheet, a file of an archive, or a printed page number */
            section?: string | null;
            start: number;
            start_byte: number;
            /** @description missing in answers of older versions, and if the document was deleted in the meantime */
            start_token?: number | null;
            text: string;
        };
        /** @description The address of a document. */
        Fetch: {
            /** @description name to show for the document; default: last part of the URL's path */
            filename?: string | null;
            /** @description language of the text in scanned pages and pictures, a value of EVERLONG_OCR_LANGUAGE; default: that of the server */
            ocr_language?: string | null;
            /** @description http:// or https:// URL on a host in EVERLONG_FETCH_HOSTS */
            url: string;
        };
        /** @description A document, or a file of batches, in the format of OpenAI's API. */
        File: {
            bytes: number;
            created_at: number;
            /** @description when a file of batches is deleted; null: never */
            expires_at?: number | null;
            filename: string;
            id: string;
            /**
             * @default file
             * @constant
             */
            object: "file";
            /**
             * @default user_data
             * @enum {string}
             */
            purpose: "user_data" | "batch" | "batch_output";
            /** @description uploaded (being read), processed or error */
            status: string;
            status_details: string | null;
        };
        /**
         * @description An accepted file format. The server recognises it by the file's content. The name and the declared type only decide
         *     between formats whose files are text, such as HTML, and text.
         */
        Format: {
            /** @description usual extensions; text files may have any */
            extensions: string[];
            /** @description for example "pdf"; "text" for UTF-8 text, which is stored as it is */
            id: string;
            media_types: string[];
            name: string;
            /**
             * @default format
             * @constant
             */
            object: "format";
        };
        /** @description The accepted file formats and the size limit. */
        FormatList: {
            data: components["schemas"]["Format"][];
            /** @description maximum size of a file, and of the text converted from it */
            max_bytes: number;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description A passage that a search found, with the same offsets as `Evidence`. */
        FoundPassage: {
            document: string;
            end: number;
            end_byte: number;
            /** @description missing in answers of older versions, and if the document was deleted in the meantime */
            end_token?: number | null;
            filename: string | null;
            /** @description page of a PDF on which the passage begins */
            page?: number | null;
            /** @description 1 for a passage that is first in the order of the search, by words and meaning, and in the reranker's; less for later places; 0 to 1 */
            score: number;
            /** @description where the passage is: a heading, a sheet, a file of an archive, or a printed page number */
            section?: string | null;
            /** @description cosine of the vectors of passage and query; null: the document has no vectors (yet) */
            similarity: number | null;
            start: number;
            start_byte: number;
            /** @description missing in answers of older versions, and if the document was deleted in the meantime */
            start_token?: number | null;
            text: string;
            /** @description share of the query's words that the passage has, weighted by their rarity, 0 to 1 */
            words: number;
        };
        /** @description The tokens of the context that belong to a document. */
        MemoryDocument: {
            document: string;
            end: number;
            start: number;
        };
        /** @description One layer of an ∞-former's memory: a continuous signal, in bins that take equal shares of the memory. */
        MemoryLayer: {
            /** @description share of the open segment's attention that each bin gets, sums to 1; null without an open segment */
            attention: number[] | null;
            /** @description context positions, in tokens, of the bins' borders, one more than bins; the closer two borders, the more memory each token between them takes */
            edges: number[];
            layer: number;
            /** @description phrases that take the most memory, largest first */
            phrases: components["schemas"]["MemoryPhrase"][];
        };
        /** @description A part of a memory, in one `layer`, or in all layers if `layer` is null. */
        MemoryPart: {
            /** @description tokens since the part was last written */
            age: number;
            /** @description size of the part; null for memories whose parts do not differ in it */
            bytes: number | null;
            /** @description relative change (of the norm) that the open segment would cause if it ended now; null if the part stores tokens unchanged or there is no open segment */
            change: number | null;
            /** @description token after the last that the part was computed from */
            end: number;
            /** @description tokens after which half of what a token wrote has faded, for the median channel of a recurrent layer; null for parts without such a decay */
            half_life: number | null;
            layer: number | null;
            name: string;
            /** @description capacity, in tokens, positions, vectors, functions or associations */
            slots: number;
            /** @description first token of the context that the part was computed from */
            start: number;
            /** @description slots in use; for a part that is not written slot by slot, its effective rank (a fraction) */
            used: number;
        };
        /** @description A run of context tokens that takes much of the memory. */
        MemoryPhrase: {
            end: number;
            /** @description text of the tokens; null outside documents, and if the document was deleted */
            quote: components["schemas"]["Quote"] | null;
            /** @description share of the memory that the tokens take, 0 to 1 */
            space: number;
            start: number;
        };
        /** @description A message of a session. A user's message has no `finish_reason` and no `usage`. */
        Message: {
            /** @description mean similarity of the server's other answers to this one, 0 to 1. Below 0.4, this answer is probably wrong. Null: there was no vote */
            agreement?: number | null;
            /** @description by sentence, in the order of the answer; none for a sentence that no passage supports */
            citations?: components["schemas"]["Citation"][] | null;
            content: string;
            created_at: number;
            evidence?: components["schemas"]["Evidence"][] | null;
            /** @description repetition: the answer began to repeat itself over and over, and was cut there */
            finish_reason?: ("stop" | "length" | "repetition" | "cancelled") | null;
            id: string;
            logprobs?: {
                [key: string]: unknown;
            }[] | null;
            /** @description the documents were still being read, so the answer rests on its evidence alone: the share that was read, 0 to 1. Null: the memory had read them */
            memory_progress?: number | null;
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
            /** @description the question as it was searched for and answered, if it referred to the conversation and was rewritten */
            standalone_question?: string | null;
            usage?: components["schemas"]["Usage"] | null;
        };
        /** @description All messages of a session, oldest first. */
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
            /** @description the message that is being answered, if its `on_disconnect` is finish */
            running?: components["schemas"]["RunningTurn"] | null;
        };
        /** @description The models that answer questions, the default one first, and the embedding model if the server has one. */
        ModelList: {
            data: (components["schemas"]["ServedModel"] | components["schemas"]["UnloadedModel"] | components["schemas"]["EmbeddingModel"])[];
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description A message of a conversation that a new session continues. Other fields of `Message` are accepted, and ignored. */
        PastMessage: {
            agreement?: number | null;
            citations?: components["schemas"]["Citation"][] | null;
            /** @description text of the message; a question must not be empty */
            content: string;
            created_at?: number | null;
            evidence?: components["schemas"]["Evidence"][] | null;
            finish_reason?: ("stop" | "length" | "repetition" | "cancelled") | null;
            model?: string | null;
            /** @enum {string} */
            role: "user" | "assistant";
            standalone_question?: string | null;
            usage?: components["schemas"]["Usage"] | null;
        };
        /** @description A part of a document's text, with the same offsets as `Evidence`. */
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
         * @description How many passages of the documents the server puts verbatim before the question. Fields that a message leaves out take
         *     the session's values, then the server's.
         */
        Recall: {
            /** @description maximum number of passages; 0: none */
            passages?: number | null;
            /** @description maximum number of tokens of all passages; at most the model's context */
            tokens?: number | null;
        };
        /** @description A message that is being answered, sent with `on_disconnect` "finish". It is not among the session's messages yet. */
        RunningTurn: {
            /**
             * @description it extends the last message, with whose text it begins
             * @default false
             */
            continues: boolean;
            created_at: number;
            /** @description missing before the search has ended */
            evidence: components["schemas"]["Evidence"][] | null;
            /** @description id of the answer */
            id: string;
            question: string;
            /** @description text of the answer so far, up to a second old */
            text: string;
        };
        /** @description A search in documents: in `documents`, or in those of `session`. */
        SearchDocuments: {
            /** @description ids of documents */
            documents?: string[] | null;
            filters?: components["schemas"]["SearchFilters"] | null;
            /**
             * @description maximum number of passages
             * @default 10
             */
            limit: number;
            /** @description a question, or words */
            query: string;
            /**
             * @description let the reranker order the best 32 passages, for English: better, and takes a few tenths of a second
             * @default true
             */
            rerank: boolean;
            /** @description id of a session */
            session?: string | null;
        };
        /** @description Restricts a search to some passages. A filter for pages or sections excludes documents that have none. */
        SearchFilters: {
            /** @description passages that begin on this page or slide, or a later one */
            first_page?: number | null;
            /** @description passages that begin on this page or slide, or an earlier one */
            last_page?: number | null;
            /** @description passages whose nearest heading contains this, ignoring case */
            section?: string | null;
        };
        /** @description The passages, best first. */
        SearchResult: {
            data: components["schemas"]["FoundPassage"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description A model that answers questions. */
        ServedModel: {
            /** @description name of the backbone; null for a model trained from scratch */
            backbone: string | null;
            /** @description Unix time in seconds at which the server started */
            created: number;
            description: string;
            fingerprint: string;
            id: string;
            /**
             * @default true
             * @constant
             */
            loaded: true;
            /** @description maximum of `recall.tokens` in requests: the model's context */
            max_recall_tokens: number;
            memory: string;
            /** @description bytes of memory that the model takes, estimated from its files; null: not known */
            memory_bytes: number | null;
            /** @description false: the memory has no trained weights, so answers are nonsense; null: it has no weights to train */
            memory_trained: boolean | null;
            /**
             * @default model
             * @constant
             */
            object: "model";
            /** @default everlong */
            owned_by: string;
            /** @description parameters of the backbone; null for one that the catalogue does not have */
            parameters: number | null;
            /** @description maximum number of passages that the server searches for a question by default; 0: recall is off */
            recall_passages: number;
            /** @description maximum number of tokens of all passages by default */
            recall_tokens: number;
            /** @description tokens of the context that the memory keeps, at most; null: it keeps a compressed form of all */
            remembered_tokens: number | null;
            segment_length: number;
            /** @description size of a session's memory in bytes, for documents of any length */
            state_bytes: number;
        };
        /** @description Messages and the memory that the server keeps for them. The memory starts as a copy of the documents' state. */
        Session: {
            /**
             * @description a message is being answered; another one is refused meanwhile
             * @default false
             */
            answering: boolean;
            /** @description the program that created it: the value of its X-Everlong-Client header (the page sends `page`); api: a request without the header; null: an older version of the server did not store it */
            client?: string | null;
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
            /** @description the session that this one was branched off from; null: from none */
            parent?: string | null;
            /** @description tokens of context: documents and messages */
            position: number;
            /** @description default for the session's messages; null: the server's default */
            recall: components["schemas"]["Recall"] | false | null;
            state_bytes: number;
            state_digest: string | null;
            /**
             * @description reading: messages are answered from passages alone until the documents are read; with recall off, they are refused
             * @enum {string}
             */
            status: "reading" | "ready" | "failed";
            /** @description given to it, or the first question, shortened; null: none yet */
            title: string | null;
        };
        /** @description A page of sessions, newest first. */
        SessionList: {
            data: components["schemas"]["Session"][];
            has_more: boolean;
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description The content and the use of a session's memory. All positions count tokens of the context: documents and messages. */
        SessionMemory: {
            /** @description size of the memory, which does not depend on the length of the context */
            bytes: number;
            documents: components["schemas"]["MemoryDocument"][];
            /** @description layers of an ∞-former; empty for other memories */
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
            /** @description tokens read into the memory */
            tokens: number;
        };
        /** @description A model that is loaded when a request names it. More is known of it once it is loaded. */
        UnloadedModel: {
            /** @description Unix time in seconds at which the server started */
            created: number;
            id: string;
            /**
             * @default false
             * @constant
             */
            loaded: false;
            /** @description bytes of memory that the model takes, estimated from its files; null: not known */
            memory_bytes: number | null;
            /**
             * @default model
             * @constant
             */
            object: "model";
            /** @default everlong */
            owned_by: string;
        };
        /** @description The fields of a session that can be changed. Fields that are left out keep their values. */
        UpdateSession: {
            /** @description default for the session's messages; false: no passages; null: the server's default */
            recall?: components["schemas"]["Recall"] | false | null;
            /** @description title; null: taken from the next question */
            title?: string | null;
        };
        /** @description A multipart upload. */
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
        /** @description A stored part of an upload. */
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
        /** @description The documents that were made of an archive's files, in its order. */
        UploadedArchive: {
            data: components["schemas"]["Document"][];
            /**
             * @default false
             * @constant
             */
            has_more: false;
            /** @description files in the archive that were left out, and why */
            notes: components["schemas"]["DocumentNote"][];
            /**
             * @default list
             * @constant
             */
            object: "list";
        };
        /** @description Token counts. `reused_tokens` of the prompt's tokens were in memory and not prefilled again. */
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
