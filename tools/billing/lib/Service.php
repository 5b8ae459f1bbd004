<?php
/**
 * A service of a billing system, and the one that the controller has for it.
 *
 * The controller keeps a terminated service for ever, and its reference with it. Where the billing system creates a
 * service again that it has terminated, the next reference is taken: 4711, then 4711-2.
 */

namespace Svc;

final class Service
{
    private const MOST_LIVES = 100;

    private $client;
    private $integration;
    private $id;

    /** @param string $id What the billing system knows the service by, for ever. */
    public function __construct(Client $client, string $integration, string $id)
    {
        $this->client = $client;
        $this->integration = $integration;
        $this->id = $id;
    }

    /**
     * The reference under which it lives, or would be ordered next, and what the controller has there.
     *
     * @return array{0: string, 1: ?array}
     */
    public function current(): array
    {
        for ($life = 1; $life <= self::MOST_LIVES; $life++) {
            $reference = $life === 1 ? $this->id : "{$this->id}-$life";
            $found = $this->at($reference);
            if ($found === null || $found['state'] !== 'terminated') {
                return [$reference, $found];
            }
        }
        throw new Refusal('conflict', 'This service was terminated and created again too often.');
    }

    /** What the controller must have of it. */
    public function existing(): array
    {
        [, $found] = $this->current();
        if ($found === null) {
            throw new Refusal('not_found', 'The controller has no such service; it was not created, or is terminated.');
        }
        return $found;
    }

    /**
     * Have its machine made; null where it is there already. The same order again is answered as the first one was, with
     * the password that a lost answer had, and one that had failed is tried again as the same service.
     *
     * @param array $order What is ordered, without what tells one order from another.
     */
    public function order(array $order): ?array
    {
        [$reference, $found] = $this->current();
        if ($found !== null && $found['state'] === 'provisioning_failed') {
            return $this->client->post("/services/{$found['id']}/retry");
        }
        $named = [
            'idempotency_key' => "{$this->integration}-$reference",
            'integration' => $this->integration,
            'external_ref' => $reference,
        ];
        try {
            return $this->client->post('/services', $named + $order);
        } catch (Refusal $refusal) {
            // What has changed at the customer since, or in an attempt at the same time, makes no other machine of the one
            // that is there.
            if ($refusal->reason !== 'conflict' || $this->at($reference) === null) {
                throw $refusal;
            }
            return null;
        }
    }

    /** Ask something of it that it must be there for. */
    public function ask(string $what, array $body = []): array
    {
        return $this->client->post("/services/{$this->existing()['id']}/$what", $body);
    }

    private function at(string $reference): ?array
    {
        try {
            return $this->client->get('/by-ref/' . rawurlencode($reference), ['integration' => $this->integration]);
        } catch (Refusal $refusal) {
            if ($refusal->reason === 'not_found') {
                return null;
            }
            throw $refusal;
        }
    }
}
