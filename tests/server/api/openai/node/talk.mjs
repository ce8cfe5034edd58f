import OpenAI from "openai";

export const MODEL = process.env.MODEL ?? "tiny-rmt";
export const client = new OpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: "unused", maxRetries: 0 });
