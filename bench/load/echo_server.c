/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Minimal stdio MCP server in C: the same tools as echo_server.py, used as the
 * near-zero-cost backend so that the bridge, not the backend, is measured.
 * gcc -O2 -o echo_server echo_server.c */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>

typedef struct { const char *p; size_t n; } span;
static char *out; static size_t on, ocap;

static void put(const char *p, size_t n) {
    if (on + n > ocap) { while (on + n > ocap) ocap = ocap ? ocap * 2 : 1 << 16; out = realloc(out, ocap); }
    memcpy(out + on, p, n); on += n;
}
#define PUTS(s) put(s, sizeof(s) - 1)
static void flush_out(void) {
    size_t o = 0;
    while (o < on) {
        ssize_t w = write(1, out + o, on - o);
        if (w < 0) { if (errno == EINTR) continue; exit(1); }
        o += w;
    }
    on = 0;
}
static const char *ws(const char *p, const char *e) { while (p < e && (*p == ' ' || *p == '\t' || *p == '\r')) p++; return p; }
static const char *str_end(const char *p, const char *e) { /* p at opening quote; returns past closing */
    p++;
    while (p < e) {
        const char *q = memchr(p, '"', e - p);
        if (!q) return e;
        const char *b = q; size_t bs = 0;
        while (b > p && b[-1] == '\\') { b--; bs++; }
        p = q + 1;
        if (!(bs & 1)) return p;
    }
    return e;
}
static const char *val_end(const char *p, const char *e) {
    if (p >= e) return e;
    if (*p == '"') return str_end(p, e);
    if (*p == '{' || *p == '[') {
        int d = 0;
        while (p < e) {
            if (*p == '"') { p = str_end(p, e); continue; }
            if (*p == '{' || *p == '[') d++;
            else if (*p == '}' || *p == ']') { if (!--d) return p + 1; }
            p++;
        }
        return e;
    }
    while (p < e && *p != ',' && *p != '}' && *p != ']' && *p != ' ') p++;
    return p;
}
/* value of a top-level key of the object in o */
static span get(span o, const char *key) {
    const char *p = o.p, *e = o.p + o.n; size_t kn = strlen(key); span none = {0, 0};
    if (!o.p) return none;
    p = ws(p, e);
    if (p >= e || *p != '{') return none;
    p++;
    for (;;) {
        p = ws(p, e);
        if (p < e && *p == ',') { p++; continue; }
        if (p >= e || *p != '"') return none;
        const char *k = p + 1; p = str_end(p, e); size_t n = p - 1 - k;
        p = ws(p, e); if (p >= e || *p != ':') return none;
        p = ws(p + 1, e);
        const char *v = p; p = val_end(p, e);
        if (n == kn && !memcmp(k, key, kn)) { span r = {v, p - v}; return r; }
    }
}
static int is(span s, const char *lit) { size_t n = strlen(lit); return s.p && s.n == n + 2 && !memcmp(s.p + 1, lit, n); }
static void strbody(span s) { if (s.p && s.n >= 2) put(s.p + 1, s.n - 2); }

static void handle(const char *p, size_t n) {
    span m = {p, n}, id = get(m, "id"), method = get(m, "method"), params = get(m, "params");
    if (!id.p || !method.p) return;
    PUTS("{\"jsonrpc\":\"2.0\",\"id\":"); put(id.p, id.n);
    if (is(method, "tools/call")) {
        span name = get(params, "name"), a = get(params, "arguments"), text = get(a, "text"), tag = get(a, "tag");
        PUTS(",\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"");
        if (is(name, "echo")) strbody(text);
        else if (is(name, "blob")) {
            span sz = get(a, "size"); size_t k = sz.p ? strtoul(sz.p, 0, 10) : 0;
            static char xs[4096]; if (!xs[0]) memset(xs, 'x', sizeof xs);
            while (k) { size_t c = k < sizeof xs ? k : sizeof xs; put(xs, c); k -= c; }
            strbody(tag);
        } else if (is(name, "count")) {
            char b[32]; int c = snprintf(b, sizeof b, "%zu ", text.n ? text.n - 2 : 0); put(b, c); strbody(tag);
        }
        PUTS("\"}],\"isError\":false}}\n");
    } else if (is(method, "initialize")) {
        span v = get(params, "protocolVersion");
        PUTS(",\"result\":{\"protocolVersion\":");
        if (v.p && v.n == 12 && memcmp(v.p, "\"2025-11-25\"", 12) <= 0) put(v.p, v.n); else PUTS("\"2025-11-25\"");
        PUTS(",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"echo\",\"version\":\"1.0\"}}}\n");
    } else if (is(method, "tools/list")) {
        PUTS(",\"result\":{\"tools\":["
             "{\"name\":\"echo\",\"description\":\"Echo text\",\"inputSchema\":{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"}},\"required\":[\"text\"]}},"
             "{\"name\":\"blob\",\"description\":\"Return size bytes\",\"inputSchema\":{\"type\":\"object\",\"properties\":{\"size\":{\"type\":\"integer\"},\"tag\":{\"type\":\"string\"}},\"required\":[\"size\",\"tag\"]}},"
             "{\"name\":\"count\",\"description\":\"Count bytes\",\"inputSchema\":{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"},\"tag\":{\"type\":\"string\"}},\"required\":[\"text\",\"tag\"]}}"
             "]}}\n");
    } else if (is(method, "ping")) PUTS(",\"result\":{}}\n");
    else PUTS(",\"error\":{\"code\":-32601,\"message\":\"method not found\"}}\n");
}
int main(void) {
    size_t cap = 1 << 20, n = 0; char *buf = malloc(cap);
    for (;;) {
        if (n == cap) buf = realloc(buf, cap *= 2);
        ssize_t r = read(0, buf + n, cap - n);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) return 0;
        size_t scan = n, start = 0; n += r;
        for (;;) {
            char *nl = memchr(buf + scan, '\n', n - scan);
            if (!nl) break;
            size_t end = nl - buf;
            if (end > start) handle(buf + start, end - start);
            start = scan = end + 1;
        }
        if (on) flush_out();
        if (start) { memmove(buf, buf + start, n - start); n -= start; }
    }
}
