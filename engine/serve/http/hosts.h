/* Names of hosts, as they stand in Host headers and listen addresses: what is an address, and which of them is this
 * very machine. Pure, any thread. A page can make its own name mean any address (DNS rebinding), but a Host header then
 * still has that name: so names are checked by whoever must not answer to any. */
#ifndef SERVE_HTTP_HOSTS_H
#define SERVE_HTTP_HOSTS_H

#include <stdbool.h>

enum { HOST_BYTES = 256 };

struct hosts {
    const char *const *names; /* known besides; "*": any */
    int n_names;
    const char *listen; /* where one listens; NULL: nowhere */
    bool local;         /* that is loopback */
};

/* The host of a Host header: without its port and brackets, in small letters, without a dot at its end. false: it is
 * none. */
bool hosts_split(const char *header, char out[HOST_BYTES]);
bool hosts_is_address(const char *host); /* a literal IPv4 or IPv6 address */
bool hosts_is_loopback(
    const char *host); /* localhost, a literal of 127.0.0.0/8, ::1; a name like 127.x.example is none */
/* Loopback, where one listens, any literal address unless one listens on loopback alone, and the names. header NULL
 * (only HTTP/1.0, so no browser) is known. */
bool hosts_know(const struct hosts *h, const char *header);

#endif
