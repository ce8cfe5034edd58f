// Shows the API's description at /docs with Swagger UI, whose files come from the server, too.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, showExtensions: true, validatorUrl: null });
