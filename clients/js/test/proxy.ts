/** `Proxy`: forwards TCP connections to the server, and can be disconnected (`pull`) and connected again (`plug`). */
import { type AddressInfo, type Server, type Socket, connect, createServer } from "node:net";

export class Proxy {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #seen = "";

  private constructor(target: URL) {
    this.#server = createServer((client) => {
      const server = connect(Number(target.port), target.hostname);
      for (const socket of [client, server]) {
        this.#sockets.add(socket);
        socket.on("error", () => {});
        socket.on("close", () => this.#sockets.delete(socket));
      }
      client.on("data", (data) => (this.#seen += data.toString("latin1")));
      client.pipe(server).pipe(client);
    });
  }

  static async to(url: string): Promise<Proxy> {
    const proxy = new Proxy(new URL(url));
    await proxy.plug(0);
    return proxy;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** The number of requests that started with `start`. */
  requests(start: string): number {
    return this.#seen.split(start).length - 1;
  }

  /** Resets all connections and refuses new ones. Returns the port, for `plug`. */
  async pull(): Promise<number> {
    const port = this.port;
    const closed = new Promise((resolve) => this.#server.close(resolve));
    for (const socket of this.#sockets) socket.resetAndDestroy();
    await closed;
    return port;
  }

  plug(port: number): Promise<void> {
    return new Promise((resolve) => this.#server.listen(port, "127.0.0.1", resolve));
  }
}
