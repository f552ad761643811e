#include "engine/serve/http/hosts.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>

bool hosts_split(const char *header, char out[HOST_BYTES])
{
    bool brackets = header[0] == '[';
    size_t n = brackets ? strcspn(header, "]") : strcspn(header, ":");
    const char *rest = header + n + (brackets && header[n]);
    if (brackets) {
        if (!header[n])
            return false;
        header++;
        n--;
    }
    if (rest[0] && (rest[0] != ':' || rest[1 + strspn(rest + 1, "0123456789")]))
        return false;
    if (n && header[n - 1] == '.' && !brackets)
        n--;
    if (!n || n >= HOST_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        out[i] = (char)tolower((unsigned char)header[i]);
    out[n] = 0;
    return true;
}

bool hosts_is_address(const char *host)
{
    struct in6_addr six;
    struct in_addr four;
    return inet_pton(AF_INET, host, &four) == 1 || inet_pton(AF_INET6, host, &six) == 1;
}

bool hosts_is_loopback(const char *host)
{
    struct in6_addr six;
    struct in_addr four;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &six) == 1)
        return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
    return strcasecmp(host, "localhost") == 0;
}

bool hosts_know(const struct hosts *h, const char *header)
{
    char host[HOST_BYTES];
    if (!header)
        return true;
    if (!hosts_split(header, host))
        return false;
    if (hosts_is_loopback(host) || (h->listen && strcasecmp(host, h->listen) == 0) ||
        (!h->local && hosts_is_address(host)))
        return true;
    for (int i = 0; i < h->n_names; i++)
        if (strcmp(h->names[i], "*") == 0 || strcasecmp(h->names[i], host) == 0)
            return true;
    return false;
}
