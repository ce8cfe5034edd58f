"""The settings by topic: the order of `everlong serve --help` and of the reference."""

GROUPS: dict[str, tuple[str, ...]] = {
    "Common settings": ("model", "host", "port", "data_dir", "models_dir", "memory", "memory_options", "device"),
    "Access": ("auth", "admin_key_file", "allowed_hosts", "fetch_hosts", "secrets_dir", "metrics_port"),
    "Model": ("tensor_parallel_size", "threads", "quantize", "gpu_quantize", "bfloat16", "cuda_graphs", "draft_tokens", "embeddings"),
    "Several models": ("models", "models_memory", "model_idle_seconds"),
    "Storage": ("redis_url", "redis_copies", "blob_url", "encryption_key_file", "private_dir"),
    "Limits": (
        "max_document_bytes", "max_body_bytes", "max_message_chars", "max_session_documents", "max_batch_bytes", "max_batch_lines", "recall_passages",
        "recall_tokens",
    ),
    "Text in pictures": ("ocr_language", "ocr_models"),
    "Scheduling": (
        "max_streams", "max_queued", "max_readers", "reading_rows", "reading_share", "max_decode_stall_ms", "turn_seconds",
        "checkpoint_seconds",
    ),
    "Quotas of each tenant": (
        "tenant_requests_per_minute", "tenant_streams", "tenant_queued", "tenant_bytes", "tenant_sessions",
        "tenant_tokens_per_day",
    ),
    "Lifetimes and timeouts": (
        "chat_seconds", "response_seconds", "batch_seconds", "idempotency_seconds", "upload_seconds", "lease_seconds", "keepalive_seconds",
        "websocket_idle_seconds", "drain_seconds",
    ),
    "Logging": ("log_format", "log_level"),
}  # fmt: skip
"""Every setting once."""
