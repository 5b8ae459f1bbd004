<?php
/**
 * A WHMCS service and the service that the controller has for it.
 *
 * The controller keeps a terminated service for ever, and its reference with it. Where WHMCS creates a service again that
 * it has terminated, the next reference is taken: 4711, then 4711-2.
 */

namespace Svc;

final class Service
{
    public const INTEGRATION = 'whmcs';
    private const MOST_LIVES = 100;

    /** The references of a WHMCS service, oldest life first. */
    private static function references(array $params): iterable
    {
        $id = (string) (int) $params['serviceid'];
        for ($life = 1; $life <= self::MOST_LIVES; $life++) {
            yield $life === 1 ? $id : "$id-$life";
        }
    }

    private static function at(Client $client, string $reference): ?array
    {
        try {
            return $client->get('/by-ref/' . rawurlencode($reference), ['integration' => self::INTEGRATION]);
        } catch (Refusal $refusal) {
            if ($refusal->reason === 'not_found') {
                return null;
            }
            throw $refusal;
        }
    }

    /**
     * The reference under which this service lives, or would be ordered next, and what the controller has there.
     *
     * @return array{0: string, 1: ?array}
     */
    public static function current(Client $client, array $params): array
    {
        foreach (self::references($params) as $reference) {
            $service = self::at($client, $reference);
            if ($service === null || $service['state'] !== 'terminated') {
                return [$reference, $service];
            }
        }
        throw new Refusal('conflict', 'This service was terminated and created again too often.');
    }

    /** The service that there must be. */
    public static function existing(Client $client, array $params): array
    {
        [, $service] = self::current($client, $params);
        if ($service === null) {
            throw new Refusal('not_found', 'The controller has no such service; it was not created, or is terminated.');
        }
        return $service;
    }
}
